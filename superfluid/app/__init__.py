"""The daemon put together: configuration, start, signals, the orderly end."""
