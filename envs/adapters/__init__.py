"""The same environment in the forms that other training libraries ask for; each adapter is a module of its own."""
