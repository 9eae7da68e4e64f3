"""From the history to the outlet of one subscriber."""
