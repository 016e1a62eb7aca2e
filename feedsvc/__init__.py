"""feedsvc: MongoDB's changes for browsers, phones and services, with resume tokens that survive everything."""

__version__ = "0.1.0"
