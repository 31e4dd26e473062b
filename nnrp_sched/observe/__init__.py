"""What is known of an operation once it has ended, and the exporters that read it (design, 3)."""
