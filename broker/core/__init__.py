"""What the broker decides, as a pure function of (events, now). No clock, socket, file or log."""
