"""Every kernel of ``device.ops`` against float64, and its time."""
