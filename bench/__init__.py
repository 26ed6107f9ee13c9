"""What keephold costs, as ratios against the raw thing it stands on: `make bench`, `make soak`."""
