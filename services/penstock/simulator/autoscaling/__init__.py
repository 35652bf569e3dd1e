"""Autoscaling: the control loop of KEDA and Kubernetes, and the plan of a clairvoyant. Pure."""
