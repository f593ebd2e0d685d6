"""Messages in the form of Grain's, for programs that exchange them."""
