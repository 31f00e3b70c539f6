"""Bad input by the thousand: files that are nearly right, and files that are nothing at all."""
