"""Every kernel of ``device.ops`` with what it should compute: one module a family."""
