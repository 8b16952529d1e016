"""The objects that a node publishes: thin; they ask who may, translate, and pass on."""
