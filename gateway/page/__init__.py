"""The page for people at `/`: one HTML file that asks this gateway how the server is doing."""
