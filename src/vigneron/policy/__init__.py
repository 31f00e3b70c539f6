"""The child: loading it, running it, its reference and its critic."""
