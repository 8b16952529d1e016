"""The contracts of OnceMQ: OMG IDL texts, their Python image, and the one door to the network."""
