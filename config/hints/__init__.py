"""Why a config.pbtxt does not parse, in the words of somebody who has made the mistake before.

Entered through explain.py. Parses nothing: protobuf says that and where it gave up.
"""
