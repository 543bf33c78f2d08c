"""What setup.py compiled of this version's own sources; empty where there was no C compiler."""
