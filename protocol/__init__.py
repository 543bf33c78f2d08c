"""The words every process shares: messages, codec, errors, datatypes, endpoints. Pure."""
