"""What the operator wrote: config.pbtxt, the repository on disk, server settings. Never serves."""
