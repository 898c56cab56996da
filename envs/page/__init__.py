"""The playground that the service shows at `/`: one HTML file."""
