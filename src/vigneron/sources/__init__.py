"""Parents, embedders and judges: models that answer, embed or score."""
