"""Scripts and manifests that start a plan on a cluster."""
