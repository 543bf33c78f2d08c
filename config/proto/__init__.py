"""The schema of config.pbtxt and its generated form. Only config/pbtxt.py loads it."""
