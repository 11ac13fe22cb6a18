"""The native core by ctypes: what every backend calls that can pass addresses of numbers."""
