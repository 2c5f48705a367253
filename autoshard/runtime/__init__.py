"""Executes a plan: processes, data, metrics and progress here; what runs inside a process is a backend's."""
