"""Programs that use Grain, with Headrace in its place."""
