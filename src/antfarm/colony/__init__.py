"""The colony as a pure machine: what is known of foragers and replicas, events in, instructions out."""
