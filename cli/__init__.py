"""The commands people type and the supervisor behind naiad serve. Holds no serving rules."""
