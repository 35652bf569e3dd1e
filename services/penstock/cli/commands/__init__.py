"""What `penstock` can be told, by what it is for; each command imports what it needs when it runs."""
