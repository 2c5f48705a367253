"""What the user says: model, training, cluster; frozen values, checked when they are made."""
