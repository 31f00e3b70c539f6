"""Pure tensor maths: no I/O, no config, no model. Names end in their shape (B samples, T tokens, V vocabulary)."""
