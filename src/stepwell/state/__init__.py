"""What a pipeline holds: the manifest, and everything that is kept, copied or collected by it."""
