"""Trees learned by posterior inference."""
