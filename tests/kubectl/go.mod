module davit.dev/tests/kubectl

go 1.24

require (
	k8s.io/component-base v0.33.13
	k8s.io/kubectl v0.33.13
)
