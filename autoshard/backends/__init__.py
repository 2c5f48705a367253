"""What each backend and platform accepts."""
