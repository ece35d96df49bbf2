// Package docs holds the documentation. Its tests compare what it says with the code.
package docs
