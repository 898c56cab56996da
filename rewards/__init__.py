"""Ranking metrics and rewards of turns and trajectories; pure functions."""
