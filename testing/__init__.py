"""Public helpers for people's own tests: start a real server, stop it, leave nothing behind."""
