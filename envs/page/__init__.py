"""The retriever playground that the service shows at `/`: one HTML file and the three calls that only it makes."""
