"""What the broker decides, as pure functions of (events, now). No clock, socket, file, lock or log."""
