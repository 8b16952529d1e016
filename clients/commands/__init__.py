"""The parts of the `oncemq` command, one for each noun or verb, and what they share."""
