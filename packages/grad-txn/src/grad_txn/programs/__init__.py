"""What every pre-training program does alike, whatever shards its model."""
