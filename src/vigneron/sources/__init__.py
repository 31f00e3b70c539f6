"""What answers, embeds or scores: parents, embedders, judges."""
