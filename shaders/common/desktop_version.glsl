#version 330 core
#extension GL_ARB_shading_language_packing : enable
