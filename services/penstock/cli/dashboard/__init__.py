"""`penstock dashboard`: a web page that draws a mesh, from the frames of `penstock top`.

One process serves the page of the whole mesh on loopback or on a unix socket. It is an operator of the mesh and shows
what its user may see; it changes nothing. The page is one document without resources of its own or of others.
"""
