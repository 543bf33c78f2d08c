"""The commands people type and the supervisor behind . Holds no serving rules."""
