"""The user's request: model, training, cluster; frozen values, checked when they are made."""
