// Pins kube-apiserver and its modules in go.sum; the binary itself is built from the module's own command.
package main

import _ "k8s.io/kubernetes/cmd/kube-apiserver/app"

func main() {}
