"""`make demo`: the promise in two minutes, with real processes that are really killed."""
