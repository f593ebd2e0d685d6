"""Speed, side by side with the peers, as ratios in one run: `make bench`."""
