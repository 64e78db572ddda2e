// Pins etcd and its modules in go.sum; the binary itself is built from the module's own command.
package main

import _ "go.etcd.io/etcd/server/v3/etcdmain"

func main() {}
