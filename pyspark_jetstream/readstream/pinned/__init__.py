"""A query's own durable consumers: made, pinned, and watched for other clients."""
